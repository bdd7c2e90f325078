"""Who is signed in, what they may see, and how often pages may ask GitHub about it."""
