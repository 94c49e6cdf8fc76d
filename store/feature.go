// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"strconv"
)

// Feature is an operation beyond the core of [Store].
type Feature uint8

// The features.
const (
	// FeatureAppend is an atomic append: [Appender].
	FeatureAppend Feature = iota + 1
	// FeatureMultiGet reads several keys in one operation: [MultiGetter].
	FeatureMultiGet
	// FeatureMultiSet writes several keys in one operation: [MultiSetter].
	FeatureMultiSet
	// FeatureQueue is queues beside the keys: [Queuer].
	FeatureQueue
	// FeatureListKeys lists the keys: [Lister].
	FeatureListKeys
)

// Features returns all features, in their order.
func Features() []Feature {
	return []Feature{FeatureAppend, FeatureMultiGet, FeatureMultiSet, FeatureQueue, FeatureListKeys}
}

// String returns the feature's name.
func (f Feature) String() string {
	switch f {
	case FeatureAppend:
		return "append"
	case FeatureMultiGet:
		return "multi-get"
	case FeatureMultiSet:
		return "multi-set"
	case FeatureQueue:
		return "queue"
	case FeatureListKeys:
		return "list-keys"
	}
	return "feature " + strconv.Itoa(int(f))
}

// FeatureReporter is a store whose features do not follow from its methods: a view of another store, or a client whose
// server decides. A store without it has the features whose interfaces it implements.
type FeatureReporter interface {
	Supports(f Feature) bool
}

// FeatureAsker is a FeatureReporter that may have to ask a server, which can fail. A failed question is an error, not a
// no: using a fallback then would put a queue's items where no other client looks for them.
type FeatureAsker interface {
	AskSupport(ctx context.Context, f Feature) (bool, error)
}

// AskSupport is [Supports] with an error for the case that the server could not be asked. The package functions use it to
// choose between the store's own operation and a fallback.
func AskSupport(ctx context.Context, s Store, f Feature) (bool, error) {
	if s == nil {
		return false, noStore{}.err(f.String())
	}
	if !implements(s, f) {
		return false, nil
	}
	if a, ok := s.(FeatureAsker); ok {
		return a.AskSupport(ctx, f)
	}
	return Supports(s, f), nil
}

// native returns the part of s that does f, if s does f by itself.
func native[T any](ctx context.Context, s Store, f Feature) (own T, has bool, err error) {
	own, ok := s.(T)
	if ok || s == nil {
		has, err = AskSupport(ctx, s, f)
	}
	return own, has, err
}

// Supports reports whether s implements f itself. If that is not known at the moment, the answer is no; see
// [AskSupport]. Without the feature, the package functions use a fallback if there is one ([Append], [MultiGet],
// [MultiSet], [QueuePush] and its siblings), but not in one atomic step; [ListKeys] has no fallback. A [Prefix] answers
// for the store below it. It corresponds to Store.has_extended_api.
func Supports(s Store, f Feature) bool {
	if !implements(s, f) {
		return false
	}
	if r, ok := s.(FeatureReporter); ok {
		return r.Supports(f)
	}
	return true
}

func implements(s Store, f Feature) bool {
	var ok bool
	switch f {
	case FeatureAppend:
		_, ok = s.(Appender)
	case FeatureMultiGet:
		_, ok = s.(MultiGetter)
	case FeatureMultiSet:
		_, ok = s.(MultiSetter)
	case FeatureQueue:
		_, ok = s.(Queuer)
	case FeatureListKeys:
		_, ok = s.(Lister)
	}
	return ok
}
