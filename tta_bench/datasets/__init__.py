"""Named domains of labelled images: published, procedural, or the user's own. Never imports torch."""
