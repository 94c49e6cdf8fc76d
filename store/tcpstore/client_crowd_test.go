// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// Many ranks that wait for one large value all get it, though the server may not hold a copy for each at the same time.
func TestCrowdGetsALargeValue(t *testing.T) {
	server, err := Listen("127.0.0.1:0", WithLimits(Limits{Memory: 16 << 20}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	const crowd, size = 24, 1 << 20
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, crowd)
	for range crowd {
		client, failed := Dial(ctx, server.Addr().String())
		if failed != nil {
			t.Fatal(failed)
		}
		defer func() { _ = client.Close() }()
		go func() {
			value, failed := client.Get(ctx, "model")
			if failed == nil && len(value) != size {
				failed = errors.New("the value is not whole")
			}
			ended <- failed
		}()
	}
	for server.Stats().Waiting < crowd {
		time.Sleep(time.Millisecond)
	}
	writer, err := Dial(ctx, server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close() }()
	if err := writer.Set(ctx, "model", make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	for range crowd {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A read that the server will never have room for ends with the reason, at once.
func TestReadWithoutRoomSaysWhy(t *testing.T) {
	server, err := Listen("127.0.0.1:0", WithLimits(Limits{Memory: 2 << 20}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	client, err := Dial(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for range 5 { // in pieces: buffers, those of replies as well as those of requests, may have half a megabyte
		if err := client.Append(t.Context(), "large", make([]byte, 128<<10)); err != nil {
			t.Fatal(err)
		}
	}
	client.SetTimeout(time.Minute) // it is at once, and not at the end of this time
	if _, err := client.Get(t.Context(), "large"); !errors.Is(err, cohort.TooLarge) ||
		!strings.Contains(err.Error(), "raise the memory limit") {
		t.Errorf("got %v", err)
	}
}
