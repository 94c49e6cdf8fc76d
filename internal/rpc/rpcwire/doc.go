// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcwire is the format of RPC messages: what each message type of torch.distributed.rpc carries, and how Go values
// are converted to Python's and back. It does no I/O and keeps no state.
//
// # For the author of an agent
//
// A [Message] has type, id, payload and tensors. [Message.Encode] and [Decode] are its form on a TensorPipe pipe,
// [Message.Frame] and [DecodeFrame] on the cohort transport. An [Encoder] writes the payload and a [Decoder] reads it,
// one of each per message:
//
//	enc := &rpcwire.Encoder{Fork: agent.forkFor(peer)}
//	payload, err := enc.PythonCall(rpcwire.UDF{Func: rpcwire.Func("stats.mean"), Args: []any{xs}}, false)
//	msg := &rpcwire.Message{Type: rpcwire.PythonCall, ID: id, Payload: payload, Tensors: enc.Tensors}
//
//	dec := &rpcwire.Decoder{Tensors: msg.Tensors, Arrive: agent.arriveFrom(peer)}
//	call, async, err := dec.PythonCall(msg.Payload)
//
// PYTHON_CALL, PYTHON_RET: [Encoder.PythonCall], [Encoder.PythonRet] and the Decoder's methods of the same names.
// PYTHON_REMOTE_CALL, PYTHON_RREF_FETCH_RET: PythonRemoteCall, PythonFetchRet.
// SCRIPT_CALL, SCRIPT_RET, SCRIPT_REMOTE_CALL, SCRIPT_RREF_FETCH_RET: ScriptCall, ScriptRet, ScriptRemoteCall,
// ScriptFetchRet. REMOTE_RET, RREF_USER_DELETE, RREF_FORK_REQUEST: [RRefPair]. RREF_CHILD_ACCEPT: [EncodeForkID].
// *_RREF_FETCH_CALL: [Fetch]. FORWARD_AUTOGRAD_*: [Autograd]; RUN_WITH_PROFILING_*: [Profiling];
// BACKWARD_AUTOGRAD_REQ: [Backward]; CLEANUP_AUTOGRAD_CONTEXT_REQ: [EncodeCleanup]; RREF_BACKWARD_REQ: [RRefBackward];
// EXCEPTION: [EncodeException]. The others are empty.
//
// # Values
//
// A Decoder yields nil, bool, int64, *big.Int, float64, complex128, string, []byte, []any, [Tuple], [*Dict], [Set],
// [FrozenSet], [ByteArray], *tensor.Tensor, [*Sparse], [Global], [WorkerInfo], [*RemoteException], [*Object], and
// whatever Arrive returns for a reference. An Encoder takes all of these and any Go number, string, slice, array, map,
// struct (a dict by field names) or pointer. Package pygo turns decoded values into typed Go variables.
//
// A failed Python call is a PYTHON_RET whose value is a [*RemoteException]; an EXCEPTION is for errors of the framework.
package rpcwire
