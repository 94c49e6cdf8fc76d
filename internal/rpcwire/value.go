// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

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

// Reference is a remote reference inside a value. The agent's reference types implement it; the codec asks the agent
// for the fork to send, and for the reference that an arriving fork becomes.
type Reference interface{ IsReference() }

// TensorHolder is a value of the program that stands for a tensor, such as one that gradients are recorded for. It is sent as
// its tensor, and whoever sends the message finds it in Encoder.Holders. Where one arrives, it is because an extension of the
// agent has put it into the tensors of the message; it fits where a tensor does.
type TensorHolder interface{ HeldTensor() *tensor.Tensor }

// TensorTarget is a type of the program that a received tensor can be made into.
type TensorTarget interface{ AssignTensor(*tensor.Tensor) error }

const rpcInternal = "torch.distributed.rpc.internal"

// The receivers are written by their dotted names, which protocol 4 allows and Python resolves.
var (
	tensorReceiver  = py.Global{Module: rpcInternal, Name: "_InternalRPCPickler._tensor_receiver"}
	rrefReceiver    = py.Global{Module: rpcInternal, Name: "_InternalRPCPickler._py_rref_receiver"}
	pythonUDF       = py.Global{Module: rpcInternal, Name: "PythonUDF"}
	remoteException = py.Global{Module: rpcInternal, Name: "RemoteException"}
	workerInfo      = py.Global{Module: "torch._C._distributed_rpc", Name: "WorkerInfo"}
)
