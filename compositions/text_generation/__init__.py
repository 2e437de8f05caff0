"""The composition `text_generation`; see README.md."""
