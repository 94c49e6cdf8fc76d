// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlink

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"

	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// Request asks a member something and returns its answer.
func Request(ctx context.Context, addr string, config *tls.Config, request []byte) ([]byte, error) {
	c, err := Dial(ctx, addr, config, hello{Format: format, Kind: kindRequest})
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	watch := ctxdial.InterruptBy(ctx, c.SetDeadline)
	_, err = c.Write(frameOf(frameRequest, request))
	var typ byte
	var answer []byte
	if err == nil {
		typ, answer, err = readFrame(bufio.NewReader(io.LimitReader(c, maxRequest)))
	}
	if watch.End() {
		return nil, context.Cause(ctx)
	}
	if err == nil && typ != frameAnswer {
		err = errors.New("the member answers with something else")
	}
	return answer, err
}
