// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package selfexe

const link = ""
