// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storetest_test

import (
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/storetest"
)

// This is the whole test of a store; in a test file it would be named TestStore.
func ExampleRun() {
	_ = func(t *testing.T) { //nolint:thelper // it is a test
		storetest.Run(t, func(*testing.T) store.Store { return store.NewMemory() })
	}
}

func ExampleMinimal() {
	s := storetest.Minimal(store.NewMemory())
	fmt.Println(store.Supports(s, store.FeatureAppend))
	// Output: false
}
