// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storefail holds the moment tests of the store client: every dialect, over connections in memory and over
// sockets to a server process that is killed or stopped.
package storefail
