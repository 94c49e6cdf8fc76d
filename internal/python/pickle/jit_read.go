// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

// What [JIT] writes as calls of TorchScript's functions is read back as objects. These functions see through them.

// Untag returns value and type of what [JIT.CloseTagged] has written, restore_type_tag(value, type), and of anything else v and "".
func Untag(v any) (any, string) {
	if o, ok := v.(*Object); ok && IsGlobal(o.Class, jitPickle, "restore_type_tag") && len(o.Args.Items) == 2 {
		if t, ok := o.Args.Items[1].(string); ok {
			return o.Args.Items[0], t
		}
	}
	return v, ""
}

// BuiltList returns the items of what [JIT.OpenList] begins, build_<kind>list([...]).
func BuiltList(v any, kind string) ([]any, bool) {
	o, ok := v.(*Object)
	if !ok || !IsGlobal(o.Class, jitPickle, "build_"+kind+"list") || len(o.Args.Items) != 1 {
		return nil, false
	}
	l, ok := o.Args.Items[0].(*List)
	if !ok {
		return nil, false
	}
	return l.Items, true
}

// BuiltTensor returns the number in what [JIT.TensorID] writes, build_tensor_from_id(n).
func BuiltTensor(v any) (int64, bool) {
	o, ok := v.(*Object)
	if !ok || !IsGlobal(o.Class, jitPickle, "build_tensor_from_id") || len(o.Args.Items) != 1 {
		return 0, false
	}
	n, ok := o.Args.Items[0].(int64)
	return n, ok
}
