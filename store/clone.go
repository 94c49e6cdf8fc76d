// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/cohort-dist/cohort"
)

// Cloner is a store that can return another handle on the same keys.
type Cloner interface {
	Clone(ctx context.Context) (Store, error)
}

// Clone returns another handle on the same keys, with its own connection and timeout, which must be closed separately. It
// corresponds to Store.clone. It is [ErrNotSupported] on a store without it.
func Clone(ctx context.Context, s Store) (Store, error) {
	if s == nil {
		return nil, noStore{}.err("clone")
	}
	if c, ok := s.(Cloner); ok {
		return c.Clone(ctx)
	}
	return nil, cohort.New("store: clone", cohort.NotSupported, fmt.Sprintf("a %T has no further handles", s))
}

// Clone implements [Cloner]: the same prefix of a further handle on the store below.
func (p *PrefixStore) Clone(ctx context.Context) (Store, error) {
	below, err := Clone(ctx, p.below())
	if err != nil {
		return nil, err
	}
	return &PrefixStore{store: below, prefix: p.prefix}, nil
}

// String names the prefix and the store below.
func (p *PrefixStore) String() string { return fmt.Sprintf("%v under %q", p.below(), p.prefix) }

// String says what it is.
func (m *Memory) String() string { return "memory store" }

// String says what it is.
func (noStore) String() string { return "no store" }
