// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlink

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestOtherUser: another user of the host cannot connect.
func TestOtherUser(t *testing.T) {
	testkit.NeedOtherUser(t)
	b := newSide(t, 2, nil)
	c, err := testkit.DialAs(t, "tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if err = writeGreeting(c, hello{Format: 1, Kind: kindRequest}); err == nil {
		var r reply
		err = readGreeting(c, &r)
	}
	if err == nil {
		t.Error("another user is answered")
	}
}
