// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

// The opcodes of protocols 0 to 5, with CPython's names.
const (
	opMark            = '('
	opStop            = '.'
	opPop             = '0'
	opPopMark         = '1'
	opDup             = '2'
	opFloat           = 'F'
	opInt             = 'I'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opLong            = 'L'
	opBinInt2         = 'M'
	opNone            = 'N'
	opPersID          = 'P'
	opBinPersID       = 'Q'
	opReduce          = 'R'
	opString          = 'S'
	opBinString       = 'T'
	opShortBinString  = 'U'
	opUnicode         = 'V'
	opBinUnicode      = 'X'
	opAppend          = 'a'
	opBuild           = 'b'
	opGlobal          = 'c'
	opDict            = 'd'
	opEmptyDict       = '}'
	opAppends         = 'e'
	opGet             = 'g'
	opBinGet          = 'h'
	opInst            = 'i'
	opLongBinGet      = 'j'
	opList            = 'l'
	opEmptyList       = ']'
	opObj             = 'o'
	opPut             = 'p'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opSetItem         = 's'
	opTuple           = 't'
	opEmptyTuple      = ')'
	opSetItems        = 'u'
	opBinFloat        = 'G'
	opProto           = 0x80
	opNewObj          = 0x81
	opExt1            = 0x82
	opExt2            = 0x83
	opExt4            = 0x84
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opLong4           = 0x8b
	opBinBytes        = 'B'
	opShortBinBytes   = 'C'
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opNewObjEx        = 0x92
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
	opByteArray8      = 0x96
	opNextBuffer      = 0x97
	opReadOnlyBuffer  = 0x98
)

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
