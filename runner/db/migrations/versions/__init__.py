"""One module for each version of the schema. One that was released is never changed again."""
