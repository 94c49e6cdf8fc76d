// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storetest is the conformance suite of stores: what a [store.Store] must do, ours or a user's.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) store.Store { return mystore.New() })
//	}
//
// Every case gets a store of its own, which the suite closes. Where PyTorch's stores differ from each other the suite
// takes an [Option]; everything else is demanded. Optional operations are tested through the functions of package store,
// so a store with the core alone is tested with their fallbacks; what must hold only for a store that does an operation
// by itself is asked of [store.Supports] first.
package storetest
