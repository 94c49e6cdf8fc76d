// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testlog

import (
	"context"
	"log/slog"
)

// Bad returns a logger whose handler calls end for every line, which may panic or end its goroutine.
func Bad(end func()) *slog.Logger { return slog.New(bad{end}) }

type bad struct{ end func() }

func (bad) Enabled(context.Context, slog.Level) bool { return true }

func (b bad) Handle(context.Context, slog.Record) error {
	b.end()
	return nil
}

func (b bad) WithAttrs([]slog.Attr) slog.Handler { return b }

func (b bad) WithGroup(string) slog.Handler { return b }
