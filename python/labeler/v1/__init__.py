r"""Messages and stubs of the `labeler.v1` contract, generated from protos/labeler/v1.

Nobody edits the modules beside this file. They are remade, from the folder `protos/`, with

    python -m grpc_tools.protoc -I . --python_out=../python --pyi_out=../python \
        --grpc_python_out=../python labeler/v1/*.proto

which lets the generated code import itself as `labeler.v1`. tests/contract/test_protos.py compares.
"""
