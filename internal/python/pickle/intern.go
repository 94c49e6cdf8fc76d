// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

// The words and classes that nearly every pickle of PyTorch's RPC contains, ready as values, so that reading them takes
// no memory.
var (
	knownWords = func() map[string]any {
		words := map[string]any{}
		for _, w := range []string{
			"torch.distributed.rpc.internal", "PythonUDF", "RemoteException", "_InternalRPCPickler", "_tensor_receiver",
			"_py_rref_receiver", "_InternalRPCPickler._tensor_receiver", "_InternalRPCPickler._py_rref_receiver",
			"builtins", "getattr", "PyObject", "storage", "cpu", "0", "1", "2", "3", "Dict[str, str]", "",
		} {
			words[w] = w
		}
		return words
	}()
	knownGlobals = func() map[Global]any {
		globals := map[Global]any{}
		for _, g := range []Global{
			{Module: "torch.distributed.rpc.internal", Name: "PythonUDF"},
			{Module: "torch.distributed.rpc.internal", Name: "_InternalRPCPickler"},
			{Module: "torch.distributed.rpc.internal", Name: "_InternalRPCPickler._tensor_receiver"},
			{Module: "torch.distributed.rpc.internal", Name: "_InternalRPCPickler._py_rref_receiver"},
			{Module: "builtins", Name: "getattr"},
			{Module: "collections", Name: "OrderedDict"},
			{Module: "torch.jit._pickle", Name: "build_tensorlist"},
			{Module: "torch.jit._pickle", Name: "build_tensor_from_id"},
			{Module: "torch._utils", Name: "_rebuild_tensor_v2"},
			{Module: "torch", Name: "FloatStorage"},
			{Module: "torch", Name: "DoubleStorage"},
			{Module: "torch", Name: "LongStorage"},
		} {
			globals[g] = g
		}
		return globals
	}()
)

// maxWord is longer than every known word.
const maxWord = 48

func boxed(g Global) any {
	if v, ok := knownGlobals[g]; ok {
		return v
	}
	return g
}
