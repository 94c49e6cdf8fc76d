// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate_test

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestOtherUsers: the connections of other users of this host are refused.
func TestOtherUsers(t *testing.T) {
	testkit.NeedOtherUser(t)
	g := gateway(t, serve(t).Addr().String())
	c, err := testkit.DialAs(t, "tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("another user is served")
	}
}
