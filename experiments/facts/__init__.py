"""Retrieval from facts: can a model find the fact that is asked for, among others?"""
