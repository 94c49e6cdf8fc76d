// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package fdlimit

func soft() int { return unknown }
