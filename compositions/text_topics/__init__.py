"""The composition `text_topics`; see README.md."""
