// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import "github.com/cohort-dist/cohort/rpc/py"

// WorkerInfo is a worker as PyTorch passes it around.
type WorkerInfo struct {
	Name string
	ID   WorkerID
}

// RemoteException is what a Python callee answers when the function raised: the text with traceback, and the class.
type RemoteException struct {
	Msg   string
	Class py.Global
}

const rpcInternal = "torch.distributed.rpc.internal"

// The receivers are written by their dotted names, which protocol 4 allows and Python resolves.
var (
	tensorReceiver  = py.Global{Module: rpcInternal, Name: "_InternalRPCPickler._tensor_receiver"}
	rrefReceiver    = py.Global{Module: rpcInternal, Name: "_InternalRPCPickler._py_rref_receiver"}
	pythonUDF       = py.Global{Module: rpcInternal, Name: "PythonUDF"}
	remoteException = py.Global{Module: rpcInternal, Name: "RemoteException"}
	workerInfo      = py.Global{Module: "torch._C._distributed_rpc", Name: "WorkerInfo"}
)
