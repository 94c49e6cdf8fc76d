// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"fmt"
	"log/slog"

	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/observe"
)

// commonConfig is what client and server both have; their own configurations embed it.
type commonConfig struct {
	logger *slog.Logger
	hook   observe.Hook
}

func defaultCommon() commonConfig { return commonConfig{logger: slog.New(slog.DiscardHandler)} }

// Option is an option of both clients and servers: a [ClientOption] and a [ServerOption].
type Option struct {
	apply func(*commonConfig)
}

func (o Option) applyClient(c *clientConfig) { o.applyCommon(&c.commonConfig) }

func (o Option) applyServer(c *serverConfig) { o.applyCommon(&c.commonConfig) }

// applyCommon does nothing for the zero Option.
func (o Option) applyCommon(c *commonConfig) {
	if o.apply != nil {
		o.apply(c)
	}
}

// WithLogger sets the logger for warnings: a connection was replaced, a client was disconnected. Without it, or with nil,
// nothing is logged.
func WithLogger(logger *slog.Logger) Option {
	return Option{apply: func(c *commonConfig) {
		if logger != nil {
			c.logger = safecall.Logger(logger)
		}
	}}
}

// WithHook sets the hook that receives events: one per operation, with the Kind "store." followed by the name of the
// operation.
func WithHook(hook observe.Hook) Option {
	return Option{apply: func(c *commonConfig) { c.hook = hook }}
}

// String names the server by its address.
func (s *Server) String() string { return fmt.Sprint("tcpstore server at ", s.addr) }

// String says how many servers are shared.
func (s *Shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d shared tcpstore servers", len(s.mu.servers))
}
