// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/store"
)

// TestMaxSizes: what is larger than the program allows is refused before it is sent, and more than the default can be allowed.
func TestMaxSizes(t *testing.T) {
	t.Parallel()
	limits := DefaultLimits()
	limits.Value = 32 << 20
	server, err := Listen("127.0.0.1:0", WithLimits(limits))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	ctx := t.Context()
	dial := func(opts ...ClientOption) *Client {
		c, err := Dial(ctx, server.Addr().String(), opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}

	small := dial(WithMaxSizes(16, 8, 2))
	if err := small.Set(ctx, "key", []byte("12345678")); err != nil {
		t.Error(err)
	}
	_, checked := small.Check(ctx, "a", "b", "c")
	for what, err := range map[string]error{
		"key": small.Set(ctx, strings.Repeat("k", 20), nil), "value": small.Set(ctx, "key", []byte("123456789")), "keys": checked,
	} {
		if !errors.Is(err, store.ErrTooLarge) {
			t.Errorf("a %s that is too large: %v", what, err)
		}
	}

	large := make([]byte, 9<<20)
	if err := dial().Set(ctx, "large", large); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("by default: %v", err)
	}
	if err := dial(WithMaxSizes(0, 16<<20, 0)).Set(ctx, "large", large); err != nil {
		t.Error(err)
	}
}
