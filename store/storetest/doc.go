// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storetest is the conformance suite for stores: it tests what any [store.Store] must do, ours or a user's.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) store.Store { return mystore.New() })
//	}
//
// Every case gets its own store, which the suite closes. Where PyTorch's stores differ from each other, an [Option]
// selects the behaviour; everything else is required. Optional operations are tested through the functions of package
// store, so a store that has only the core is tested with their fallbacks. Requirements that apply only to a store's own
// implementation of an operation are skipped unless [store.Supports] reports one.
package storetest
