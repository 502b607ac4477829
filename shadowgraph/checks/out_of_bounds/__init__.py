"""SG101, out-of-bounds write: a launch wrote outside its buffer, its captured views, or a row."""

CODE = "SG101"
