// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"fmt"
	"testing"
	"time"
)

// TestEarlyMessageCompletesUnwaitedReceive: a receive of a message that was sent before it completes, also if no goroutine waits for it.
func TestEarlyMessageCompletesUnwaitedReceive(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		for _, size := range []int{1, 1 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes", transport, size), func(t *testing.T) {
				t.Parallel()
				groups := newWorld(t, 2, WithTransport(transport))
				ctx := ctxOf(t)
				sent := groups[0].Send(ctx, from(make([]int8, size)...), 1, 1)
				last := groups[0].Send(ctx, from(int8(1)), 1, 2)
				must(t, groups[1].Recv(ctx, from(int8(0)), 0, 2).Wait(ctx)) // behind the first
				must(t, last.Wait(ctx))
				time.Sleep(100 * time.Millisecond) // no goroutine polls for messages any more, probably
				received := groups[1].Recv(ctx, from(make([]int8, size)...), 0, 1)
				must(t, sent.Wait(ctx))
				select {
				case <-received.Done():
					must(t, received.Err())
				case <-ctx.Done():
					t.Error("the message is not there")
				}
			})
		}
	}
}
