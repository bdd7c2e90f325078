"""Who is signed in, what they may see, how often pages may ask GitHub about it, and how many are made at once."""
