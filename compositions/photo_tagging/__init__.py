"""The composition `photo_tagging`; see README.md."""
