// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
)

const (
	// popGrace is how long a pop whose time is up waits to learn whether it took an item.
	popGrace = time.Second
	// lastWord is how long a wait that the store's timeout ended listens for the server's word that nothing came. A
	// server that does not even say that is not there, which is another reason than a key that nobody has set.
	lastWord = 200 * time.Millisecond
	// answerTime is the least time that a server has for an answer that waits for nothing. The store's timeout may be
	// shorter, to look whether a key comes.
	answerTime = 2 * time.Second
)

// limitOf is when an operation whose context has no deadline ends: zero means never.
func limitOf(ctx context.Context, timeout time.Duration, waits bool) time.Time {
	if _, bounded := ctx.Deadline(); bounded {
		return time.Time{}
	}
	if timeout = boundOf(timeout, waits); timeout <= 0 {
		return time.Time{}
	}
	return time.Now().Add(timeout)
}

// withinTimeout bounds a question by the store's timeout, as limitOf does for an operation that waits for nothing.
func (c *Client) withinTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if limit := limitOf(ctx, c.Timeout(), false); !limit.IsZero() {
		return context.WithDeadlineCause(ctx, limit, errLimit)
	}
	return context.WithCancel(ctx)
}

// boundOf is how long an operation without a deadline of its own may take; zero or less: for ever. Only a wait may take
// for ever: what the server answers at once has the default timeout then.
func boundOf(timeout time.Duration, waits bool) time.Duration {
	switch {
	case waits:
		return timeout
	case timeout <= 0:
		return store.DefaultTimeout
	}
	return max(timeout, answerTime)
}

// The ends of an operation by the store's timeout.
var (
	errLimit  = cohort.New("tcpstore", cohort.DeadlineExceeded, "no answer within the store's timeout")
	errSilent = cohort.New("tcpstore", cohort.DeadlineExceeded, "no answer within the store's timeout, and none to the question why")
)

// endOf returns why an operation must end now, or nil.
func endOf(ctx context.Context, limit time.Time) error {
	if e := cohort.FromContext(ctx, "tcpstore"); e != nil {
		return e
	}
	if !limit.IsZero() && time.Until(limit) <= 0 {
		return errLimit
	}
	return nil
}

// sleepUntil waits for wake. It returns an error when ctx ends or limit passes first.
func sleepUntil(ctx context.Context, limit time.Time, wake <-chan struct{}) error {
	var alarm <-chan time.Time
	if !limit.IsZero() {
		timer := time.NewTimer(time.Until(limit))
		defer timer.Stop()
		alarm = timer.C
	}
	failpoint.At("tcpstore.wait.sleep")
	select {
	case <-wake:
		return nil
	case <-ctx.Done():
		return cohort.FromContext(ctx, "tcpstore")
	case <-alarm:
		return errLimit
	}
}

// timeoutDetail says that the store's timeout has passed; for a wait in the words of PyTorch, which users search for.
func timeoutDetail(q *request, timeout time.Duration, silent bool) string {
	if !q.wait {
		return fmt.Sprintf("the server has not answered within %v: it hangs, or the network is cut", boundOf(timeout, false))
	}
	if q.op == wire.Barrier {
		why := fmt.Sprintf("fewer than %d have come", q.num)
		if silent {
			why = "the server has not answered: it hangs, or the network is cut"
		}
		return fmt.Sprintf("barrier timeout after %dms, key: %s; %s within the store's timeout of %v", timeout.Milliseconds(), q.key, why, timeout)
	}
	keys := wire.KeyPrefix + q.key
	if q.keys != nil {
		keys = wire.KeyPrefix + strings.Join(q.keys[:min(len(q.keys), storeop.ShownKeys)], ", "+wire.KeyPrefix)
	}
	why := "nobody has set them"
	if silent {
		why = "the server has not answered: it hangs, or the network is cut; whether the keys are set is not known"
	}
	return fmt.Sprintf("wait timeout after %dms, keys: %s; %s within the store's timeout of %v",
		timeout.Milliseconds(), keys, why, timeout)
}
