"""The stand-in for `sagemaker.modules`, where late releases of version 2 of the SDK have ModelTrainer."""
