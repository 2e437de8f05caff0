"""What all GPU backends share: blueprints become plans, plans run on devices."""
