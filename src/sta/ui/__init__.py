"""The page in the browser: a Gradio app on this machine (`sta ui`)."""
