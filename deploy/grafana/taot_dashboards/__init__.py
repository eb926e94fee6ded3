"""TAOT's Grafana dashboards as code: what each panel asks for and what it means. `../generate.py` writes the files."""
