"""Who is signed in, and what they may see."""
