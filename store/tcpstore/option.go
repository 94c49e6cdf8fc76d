// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"log/slog"

	"github.com/cohort-dist/cohort/observe"
)

// commonConfig is what client and server are both told; their own configurations embed it.
type commonConfig struct {
	logger *slog.Logger
	hook   observe.Hook
}

func defaultCommon() commonConfig { return commonConfig{logger: slog.New(slog.DiscardHandler)} }

// Option is an option of both [Dial] and the server: it is a [ClientOption] and a server option.
type Option struct {
	apply func(*commonConfig)
}

func (o Option) applyClient(c *clientConfig) {
	if o.apply != nil {
		o.apply(&c.commonConfig)
	}
}

// WithLogger gives the logger for what a user should know: connections that are replaced, clients that are cut. Without
// it nothing is logged. Nil is the same as none.
func WithLogger(logger *slog.Logger) Option {
	return Option{apply: func(c *commonConfig) {
		if logger != nil {
			c.logger = logger
		}
	}}
}

// WithHook gives the receiver of events: one per operation, its Kind "store." and the operation's name.
func WithHook(hook observe.Hook) Option {
	return Option{apply: func(c *commonConfig) { c.hook = hook }}
}
