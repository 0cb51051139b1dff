"""What the compiler made of a program, for people: as text, and as a page for a browser."""
