// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import "strconv"

// Type is the kind of an RPC message, with PyTorch's numbers.
type Type uint16

// The message types.
const (
	ScriptCall              Type = 0x100
	ScriptRet               Type = 0x201
	PythonCall              Type = 0x102
	PythonRet               Type = 0x203
	ScriptRemoteCall        Type = 0x104
	PythonRemoteCall        Type = 0x105
	RemoteRet               Type = 0x206
	ScriptRRefFetchCall     Type = 0x107
	PythonRRefFetchCall     Type = 0x108
	ScriptRRefFetchRet      Type = 0x209
	PythonRRefFetchRet      Type = 0x20a
	RRefUserDelete          Type = 0x10b
	RRefForkRequest         Type = 0x10c
	RRefChildAccept         Type = 0x10d
	RRefAck                 Type = 0x20e
	ForwardAutogradReq      Type = 0x10f
	ForwardAutogradResp     Type = 0x210
	BackwardAutogradReq     Type = 0x111
	BackwardAutogradResp    Type = 0x212
	CleanupAutogradReq      Type = 0x113
	CleanupAutogradResp     Type = 0x214
	RunWithProfilingReq     Type = 0x115
	RunWithProfilingResp    Type = 0x216
	RRefBackwardReq         Type = 0x117
	RRefBackwardResp        Type = 0x218
	Exception               Type = 0x237
	requestBit, responseBit      = 0x100, 0x200
)

var typeNames = map[Type]string{
	ScriptCall: "SCRIPT_CALL", ScriptRet: "SCRIPT_RET", PythonCall: "PYTHON_CALL", PythonRet: "PYTHON_RET",
	ScriptRemoteCall: "SCRIPT_REMOTE_CALL", PythonRemoteCall: "PYTHON_REMOTE_CALL", RemoteRet: "REMOTE_RET",
	ScriptRRefFetchCall: "SCRIPT_RREF_FETCH_CALL", PythonRRefFetchCall: "PYTHON_RREF_FETCH_CALL",
	ScriptRRefFetchRet: "SCRIPT_RREF_FETCH_RET", PythonRRefFetchRet: "PYTHON_RREF_FETCH_RET",
	RRefUserDelete: "RREF_USER_DELETE", RRefForkRequest: "RREF_FORK_REQUEST", RRefChildAccept: "RREF_CHILD_ACCEPT",
	RRefAck: "RREF_ACK", ForwardAutogradReq: "FORWARD_AUTOGRAD_REQ", ForwardAutogradResp: "FORWARD_AUTOGRAD_RESP",
	BackwardAutogradReq: "BACKWARD_AUTOGRAD_REQ", BackwardAutogradResp: "BACKWARD_AUTOGRAD_RESP",
	CleanupAutogradReq: "CLEANUP_AUTOGRAD_CONTEXT_REQ", CleanupAutogradResp: "CLEANUP_AUTOGRAD_CONTEXT_RESP",
	RunWithProfilingReq: "RUN_WITH_PROFILING_REQ", RunWithProfilingResp: "RUN_WITH_PROFILING_RESP",
	RRefBackwardReq: "RREF_BACKWARD_REQ", RRefBackwardResp: "RREF_BACKWARD_RESP", Exception: "EXCEPTION",
}

// Known reports whether t is one of the types above.
func (t Type) Known() bool { return typeNames[t] != "" }

// IsRequest reports whether t asks for an answer.
func (t Type) IsRequest() bool { return t&requestBit != 0 }

// IsResponse reports whether t is an answer.
func (t Type) IsResponse() bool { return t&responseBit != 0 }

// String returns PyTorch's name of the type.
func (t Type) String() string {
	if name := typeNames[t]; name != "" {
		return name
	}
	return "type " + strconv.FormatUint(uint64(t), 16)
}
