// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package tcpstore

func init() { defaultLoops = 3 }
