// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package py has the values of Python that Go has no type for: tuples, dicts in their order, sets, classes by their names, and
// objects of classes that only Python knows. Package rpc sends and receives them. In Go the values of a call are
//
//	None, bool, int, float, complex, str    nil, bool, int64 or *big.Int, float64, complex128, string
//	bytes, bytearray                        []byte, ByteArray
//	list, tuple, dict, set, frozenset       []any, Tuple, *Dict, Set, FrozenSet
//	torch.Tensor, torch.sparse_coo          *tensor.Tensor, *tensor.Sparse
//	RRef                                    *rpc.Ref[T]
//	classes and functions                   Global
//	any other Python object                 *Object, which can be kept and sent back
//
// Where Go code names a type (a result, a field, a parameter) values are converted: an int fits a float64, a tuple or
// set a slice, a dict a map or struct, None a pointer, slice, map or struct{}. A number that does not fit is an error. A key that a
// struct has no field for is ignored, as in encoding/json; tag a field `rpc:"name,required"` if it must be there.
// So most programs need this package only where a tuple or an order matters.
//
// Printed, the types of this package look as they do in Python.
package py
