# SPDX-License-Identifier: Apache-2.0
"""Reports: what was leased and waited for, for people and for Hugging Face's Trainer."""
