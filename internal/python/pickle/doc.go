// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package pickle reads and writes Python pickles as data. Nothing is ever imported or called: a class or function is a
// [Global], an object made by calling something is an [*Object] that describes what would have been called with what.
//
// # Values
//
//	Python            Go
//	None              nil
//	bool              bool
//	int               int64, or *big.Int beyond 64 bits
//	float             float64
//	str               string (its UTF-8 bytes; a lone surrogate keeps Python's three-byte form)
//	bytes             Bytes
//	bytearray         *ByteArray
//	list              *List
//	tuple             *Tuple
//	dict              *Dict, in order
//	set, frozenset    *Set, *FrozenSet
//	class, function   Global
//	anything else     *Object (REDUCE, NEWOBJ, BUILD), *PersID
//
// Containers are pointers, so a value that a pickle mentions twice is the same pointer twice, and converting each
// pointer once never costs more than the pickle was long. [Decode] bounds nesting, memo, number of values and input
// size, and refuses a value that contains itself unless [Limits] allows it.
//
// # Dialects
//
// [Append] writes what CPython reads: protocol 4, or 2 on request; the same value always gives the same bytes.
// [JIT] writes the protocol 2 subset of TorchScript's pickler, whose reader knows no other opcodes and whose strings
// may hold any bytes.
package pickle
