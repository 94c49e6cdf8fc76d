// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"log/slog"
	"time"

	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/observe"
)

// Option changes how [Open] opens a file.
type Option interface{ apply(*Store) }

type optionFunc func(*Store)

func (f optionFunc) apply(s *Store) { f(s) }

// WithWorldSize sets after how many closed handles the file is removed; see the package's manual. Negative, the
// default, means never.
func WithWorldSize(n int) Option { return optionFunc(func(s *Store) { s.worldSize = n }) }

// WithTimeout sets the store's timeout; the default is [store.DefaultTimeout].
func WithTimeout(d time.Duration) Option { return optionFunc(func(s *Store) { s.SetTimeout(d) }) }

// WithMaxValue sets the largest value in bytes that is read or written. The default is 1 GiB; the format ends at 4 GiB.
func WithMaxValue(n int64) Option {
	return optionFunc(func(s *Store) { s.limit.value = min(max(n, 0), 1<<32-1) })
}

// WithLogger sets the logger for warnings: an unfinished record was cut off, the file was replaced by another. Without
// it, or with nil, nothing is logged.
func WithLogger(logger *slog.Logger) Option {
	return optionFunc(func(s *Store) {
		if logger != nil {
			s.logger = safecall.Logger(logger)
		}
	})
}

// WithHook sets the hook that receives events: the begin and end of every operation, its Kind "store." and the operation's
// name.
func WithHook(hook observe.Hook) Option {
	return optionFunc(func(s *Store) { s.hook = hook })
}
