// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storejournal"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// backupPause is how long a backup waits for an image of the store that is being made already.
const backupPause = 100 * time.Millisecond

// Backup writes what the server holds at one moment, while others go on to use it: keys, queues and claims. "cohort store restore" makes
// the folder of a server of it, see [WithDataDir]; the server itself may be without one. It returns how many bytes it wrote. PyTorch's
// servers have nothing like it; there the error is [cohort.NotSupported].
func (c *Client) Backup(ctx context.Context, w io.Writer) (int64, error) {
	id, _, err := c.Hello(ctx)
	if err != nil {
		return 0, err
	}
	b := storejournal.NewBackup(w, storecore.Identity(id))
	for more := true; more && err == nil; {
		var part []byte
		if part, more, err = c.backupPart(ctx, b.Size() == 0); err == nil {
			err = b.Add(part)
		}
	}
	if err == nil {
		err = b.End()
	}
	return b.Size(), err
}

// backupPart reads the next part.
func (c *Client) backupPart(ctx context.Context, first bool) (part []byte, more bool, err error) {
	q := &request{op: wire.Backup}
	if first {
		q.num = 1
	}
	for {
		r, err := c.do(ctx, q)
		if err == nil || !errors.Is(err, cohort.AlreadyExists) {
			return r.Value, r.Num != 0, err
		}
		select {
		case <-time.After(backupPause):
		case <-ctx.Done():
			return nil, false, err
		}
	}
}
