"""The worker program: what runs on worker machines. `taskmesh worker` becomes `python -m taskmesh_workers`.

taskmesh itself never imports this package.
"""
