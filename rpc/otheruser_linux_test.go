// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
)

// TestOtherUser: the port of a worker does not answer another user of the host.
func TestOtherUser(t *testing.T) {
	testkit.NeedOtherUser(t)
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	a, err := Join(testContext(t), st, "w", WithAddr("127.0.0.1:0"), WithLogger(testLogger()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	testkit.RefusesOtherUser(t, "tcp", a.Addr())
}
