"""What `to_df` costs beside joinengine's own sink."""
