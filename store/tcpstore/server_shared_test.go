// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"testing"
	"time"
)

// Close means now, also while a Shutdown of the same lease waits for clients that do not leave.
func TestLeaseCloseEndsShutdown(t *testing.T) {
	var shared Shared
	lease, err := shared.Acquire("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := Dial(t.Context(), lease.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ended := make(chan error, 1)
	go func() { ended <- lease.Shutdown(context.Background()) }()
	select {
	case err := <-ended:
		t.Fatalf("Shutdown did not wait for the client: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	closed := make(chan error, 1)
	go func() { closed <- lease.Close() }()
	for what, end := range map[string]chan error{"Close": closed, "Shutdown": ended} {
		select {
		case err := <-end:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s goes on", what)
		}
	}
}
