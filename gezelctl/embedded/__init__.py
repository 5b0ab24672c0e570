"""An HTTP llama.cpp server inside this Python: the xllamacpp wheel behind llama-server's command line."""
