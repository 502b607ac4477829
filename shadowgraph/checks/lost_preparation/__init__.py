"""SG114, lost preparation: bytes prepared for a replay were overwritten for another one before it read them."""

CODE = "SG114"
